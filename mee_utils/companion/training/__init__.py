"""What made the shipped models, once: mini T5s, the training loop, the recipe of every model, retrainings."""
