"""Other ways to more than one prediction, under the ensemble's contract: dropout, epinets, and choices of members."""
