"""The search: propose, certify, measure, decide, and write down everything."""
