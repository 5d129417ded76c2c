"""Admission: budgets, limits and rates are reserved here before a request is sent."""
