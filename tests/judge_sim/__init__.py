"""The simulation's own judgement: traffic that has the moments it claims, peers by their rules, bars that can fail."""
