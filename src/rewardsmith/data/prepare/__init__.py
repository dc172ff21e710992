"""Jobs that make the data that reward models are trained on: each is one settings class with one `run`."""
