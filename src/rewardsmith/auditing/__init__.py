"""Can a reward be trusted? Answers whose worth is known, attacks, what they find, and the watch during training."""
