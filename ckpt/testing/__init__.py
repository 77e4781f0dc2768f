"""For your own tests: does your training resume as if nothing had happened?"""

from ._exact import assert_resume_exact as assert_resume_exact

__all__ = ["assert_resume_exact"]
