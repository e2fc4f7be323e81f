"""Replicas of `jspec serve` behind one address, on Ray Serve.

python examples/ray_serve.py                 # asks two replicas on this machine, and ends
python examples/ray_serve.py --port 8000     # the OpenAI API at http://127.0.0.1:8000/v1
serve run examples.ray_serve:build model=smollm2-135m replicas=4 gpus=1

Requests with one `x-session-id` header go to one replica, which has the conversation in memory. If
a replica dies, its requests end and Ray starts another one. A request with a seed that is sent
again has the same tokens.
"""

import argparse
import json
import socket
import sys
import urllib.request
from typing import Any

try:
    import ray
    from pydantic import BaseModel
    from ray import serve
    from ray.serve.config import RequestRouterConfig
    from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter
except ImportError as error:
    sys.exit(f"this example needs Ray ({error}); pip install 'jspec-jax[ray]'")


@serve.deployment(
    max_ongoing_requests=64,
    graceful_shutdown_timeout_s=600,  # a replica that is taken away ends what it has begun
    request_router_config=RequestRouterConfig(request_router_class=ConsistentHashRouter),
)
@serve.ingress()
class Engine:
    """One replica: a model on its own device, and the application of `jspec serve`."""

    def __init__(self, model: str, method: str | None, settings: dict[str, Any]):
        from jspec.serve import launch
        from jspec.sessions import compilation, method_choice, session

        compilation.keep_on_disk()
        served = launch.ServeSettings(name=model, **settings)
        choice = launch.narrow(method_choice.choose(method, None), served.rows)
        self.service = launch.service_of(session.start(model, None, choice, None), served)

    def __serve_build_asgi_app__(self) -> Any:
        return self.service.application()


class Fleet(BaseModel):
    """A replica; `settings` are the fields of `jspec.serve.launch.ServeSettings`."""

    model: str = "jspec-800k"
    method: str | None = None
    replicas: int = 2
    gpus: float = 0
    settings: dict[str, Any] = {}


SMALL = Fleet(method="prompt_lookup", settings={"rows": 2, "grammar_states": 0, "penalties": False})
"""A method that compiles in seconds."""


def build(fleet: Fleet) -> serve.Application:
    """Returns the application, for `serve run`."""
    options = {"num_cpus": 1, "num_gpus": fleet.gpus}
    engine = Engine.options(num_replicas=fleet.replicas, ray_actor_options=options)
    return engine.bind(fleet.model, fleet.method, fleet.settings)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, help="serve there until Ctrl-C")
    parser.add_argument("--fleet", type=Fleet.model_validate_json, default=SMALL, help="JSON")
    given = parser.parse_args()
    with socket.create_server(("127.0.0.1", given.port or 0)) as free:
        port = free.getsockname()[1]
    ray.init(include_dashboard=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(build(given.fleet), blocking=given.port is not None)
    for prompt in ("Once upon a time", "The little dog", "Tom had"):
        body = {"model": given.fleet.model, "prompt": prompt, "seed": 7, "max_tokens": 24}
        url = f"http://127.0.0.1:{port}/v1/completions"
        with urllib.request.urlopen(url, json.dumps(body).encode()) as answer:
            print(f"{prompt!r}: {json.load(answer)['choices'][0]['text']!r}")
    serve.shutdown()


if __name__ == "__main__":
    main()
