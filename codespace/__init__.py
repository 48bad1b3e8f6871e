"""CodeSpace: a personal daemon that gives an outside agent a safe pair of hands on chosen directories."""

__version__ = "0.1.0"
