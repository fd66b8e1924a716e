"""The items of the doctor's list. Each works on a ``DoctorCase``."""
