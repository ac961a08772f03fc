"""Figures: what is drawn, and how it is rendered."""
