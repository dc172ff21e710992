"""The engine that runs Hugging Face models inside this process."""
