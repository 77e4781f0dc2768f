"""Training that resumes as if nothing had happened."""
