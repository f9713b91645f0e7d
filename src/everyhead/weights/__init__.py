"""Model folders on disk, in Hugging Face's layout where Hugging Face has the family."""

from everyhead.weights.folder import load, load_model, save, save_model

__all__ = ["load", "load_model", "save", "save_model"]
