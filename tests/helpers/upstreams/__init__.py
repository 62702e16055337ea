"""A simulated upstream: an HTTP server with OpenAI's routes that answers, and misbehaves, as a test says."""

from tests.helpers.upstreams.behaviours import Behaviour
from tests.helpers.upstreams.running import UpstreamProcess, simulated_upstream
from tests.helpers.upstreams.server import SimulatedUpstream
from tests.helpers.upstreams.settings import Settings

__all__ = ["Behaviour", "Settings", "SimulatedUpstream", "UpstreamProcess", "simulated_upstream"]
