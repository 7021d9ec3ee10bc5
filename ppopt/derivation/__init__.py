"""Models in layers from published dimensions: an architecture, a GPU and how it trains give costs.

May import the problem and the formats; nothing here is measured, and every figure says so.
"""
