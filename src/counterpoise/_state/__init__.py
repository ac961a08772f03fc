"""State that balancers keep between steps."""
