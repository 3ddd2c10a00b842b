"""The tasks that come with the library, by the names of `apdo.envs.ENVIRONMENTS`; their controllers and pictures."""
