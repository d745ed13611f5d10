"""The engine-control endpoints of a simulated replica: what vLLM offers to whoever runs it, and no router should pass.

They do what a test can see and no more: adapters come and go, sleeping drops the cache and is remembered, profiling and
collective calls only succeed. A sleeping replica still generates; vLLM's would not.
"""

from aiohttp import web

from replica.errors import BadRequestError
from replica.openai_requests import parse_body
from replica.serving import Serving, json_response

_INVALID = "InvalidUserInput"


class ControlApi:
    """Engine control: sleep, caches, adapters, profiling."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._asleep = False

    def routes(self) -> list[web.RouteDef]:
        serving = self._serving
        does_nothing = ("/reset_mm_cache", "/reset_encoder_cache", "/start_profile", "/stop_profile")
        return [
            web.post("/reset_prefix_cache", self._reset_prefix_cache),
            web.post("/sleep", self._sleep),
            web.post("/wake_up", self._wake_up),
            web.get("/is_sleeping", self._is_sleeping),
            web.post("/collective_rpc", self._collective_rpc),
            *(web.post(path, self._succeed) for path in does_nothing),
            serving.post("/v1/load_lora_adapter", self._load_adapter),
            serving.post("/v1/unload_lora_adapter", self._unload_adapter),
        ]

    async def _reset_prefix_cache(self, _: web.Request) -> web.StreamResponse:
        """vLLM's resets nothing while a request holds a block, and says so."""
        cache = self._serving.driver.engine.cache
        idle = cache.free == cache.blocks
        if idle:
            cache.forget()
        return json_response({"success": idle})

    async def _sleep(self, _: web.Request) -> web.StreamResponse:
        self._asleep = True
        self._serving.driver.engine.cache.forget()
        return web.Response()

    async def _wake_up(self, _: web.Request) -> web.StreamResponse:
        self._asleep = False
        return web.Response()

    async def _is_sleeping(self, _: web.Request) -> web.StreamResponse:
        return json_response({"is_sleeping": self._asleep})

    async def _collective_rpc(self, _: web.Request) -> web.StreamResponse:
        return json_response({"results": [None]})

    async def _succeed(self, _: web.Request) -> web.StreamResponse:
        return web.Response()

    async def _load_adapter(self, request: web.Request) -> web.StreamResponse:
        body = parse_body(await request.read())
        name, path = body.get("lora_name"), body.get("lora_path")
        if not (isinstance(name, str) and name and isinstance(path, str) and path):
            raise BadRequestError("Both 'lora_name' and 'lora_path' must be provided.", kind=_INVALID)
        adapters = self._serving.model.adapters
        if name in adapters and body.get("load_inplace") is not True:
            raise BadRequestError(f"The lora adapter '{name}' has already been loaded.", kind=_INVALID)
        self._serving.adapt([other for other in adapters if other != name] + [name])
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload_adapter(self, request: web.Request) -> web.StreamResponse:
        name = parse_body(await request.read()).get("lora_name")
        adapters = self._serving.model.adapters
        if name not in adapters:
            raise BadRequestError(f"The lora adapter '{name}' cannot be found.", status=404)
        self._serving.adapt([other for other in adapters if other != name])
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")
