"""Commands that prepare data with the help of models: the models, what is kept of their answers, and the output."""
