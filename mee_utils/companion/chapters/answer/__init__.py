"""Chapter 08: full quality and faster? The answer, the guarantee, and bugs of published code."""
