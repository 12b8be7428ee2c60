"""Chapter 05: confidence measures over one layer and over several."""
