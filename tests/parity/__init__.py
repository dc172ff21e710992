"""Values that verl and TRL compute, recorded once, and what loads them."""
