"""Rewards that train judges: how near a judge's verdict is to one that is known."""
