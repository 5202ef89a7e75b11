"""The paper's claims: what it says, how each is tested, what the results say."""
