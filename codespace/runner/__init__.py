"""The runner: verbs on files, patches and processes of one machine. It decides no policy."""
