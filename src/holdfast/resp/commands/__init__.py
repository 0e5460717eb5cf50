"""The commands, a module for each noun. Each says what it takes, and answers after what it did has been committed."""
