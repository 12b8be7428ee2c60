"""The layerwise decoder and `generate`."""
