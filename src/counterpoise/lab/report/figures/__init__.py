"""Figures: specifications of what they show, and two renderers."""
