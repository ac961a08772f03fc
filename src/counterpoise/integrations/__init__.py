"""At home in other loops. Each module imports its framework, and nothing imports them but you."""
