"""What all tests share: how hypothesis runs them."""

from hypothesis import HealthCheck, settings

# By itself it fails an example that takes 200 ms, and examples that are slow to be made: both are up
# to what else the machine does.
settings.register_profile(
    "unhurried", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unhurried")
