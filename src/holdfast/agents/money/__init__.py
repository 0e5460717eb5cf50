"""Money: budgets, and what was used."""
