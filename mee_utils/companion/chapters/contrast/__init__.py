"""Chapter 04: contrast between an early and a late layer, as a confidence measure and as a decoder."""
