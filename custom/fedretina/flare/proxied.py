"""FLARE's way to the server through the hospital's proxy: its own driver for websockets over TLS, with CONNECT before.

FLARE's driver names no proxy to its HTTP client and does not let it read the environment. It is the same for `http` and
for `https`; a kit that names a proxy says `https`, and for that the component here puts ours in its place. FLARE builds
a kit's components at the start of each process, the parent of a site and each process of a job, before that connects.
"""

from __future__ import annotations

import os

import aiohttp
from nvflare.apis.fl_component import FLComponent
from nvflare.fuel.f3 import drivers
from nvflare.fuel.f3.communicator import driver_mgr
from nvflare.fuel.f3.drivers import net_utils
from nvflare.fuel.f3.drivers.aio_http_driver import WS_PATH, AioHttpDriver
from nvflare.fuel.f3.drivers.driver import ConnectorInfo
from nvflare.fuel.f3.drivers.driver_params import DriverParams

from fedretina.errors import SettingsError
from fedretina.kit.proxy import SCHEME, Proxy


class Proxied(FLComponent):
    """Lets the connections of this process to the server go through a proxy.

    Args:
        address: The proxy, such as http://proxy.hospital.example:3128.
        login: File with user:password for it; None where it asks for none.

    Raises:
        SettingsError: The address is none.
    """

    def __init__(self, address: str, login: str | None = None) -> None:
        super().__init__()
        go_through(Proxy.read(address, login))


def go_through(proxy: Proxy) -> None:
    """Let connections of this process by `https` go through a proxy from now on."""

    class Through(ProxiedDriver):
        """FLARE makes drivers itself, and gives them nothing."""

    Through.proxy = proxy
    driver_mgr.search_folder(os.path.dirname(drivers.__file__), drivers.__package__)  # else FLARE would, after us
    driver_mgr.drivers[SCHEME] = Through


class ProxiedDriver(AioHttpDriver):
    """FLARE's driver of websockets over TLS, whose connections begin with CONNECT; the server notices nothing."""

    proxy: Proxy

    def connect(self, connector: ConnectorInfo) -> None:
        """Connect, and serve the connection until it ends; FLARE calls it again then.

        Raises:
            SettingsError: The connection would be without TLS, which a proxy could read.
            ProxyError: The proxy does not let it through.
            DataError: The proxy's login cannot be read.
        """
        self.connector = connector
        self.ssl_context = net_utils.get_ssl_context(connector.params, False)
        if self.ssl_context is None:
            raise SettingsError("through a proxy a kit speaks TLS alone: take `connection_security: clear` out of it.")
        self.aio_context.run_coro(self._connect(connector.params)).result()

    async def _connect(self, params: dict[str, str]) -> None:
        host, port = params[DriverParams.HOST.value], params[DriverParams.PORT.value]
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(
                    f"wss://{host}:{port}/{WS_PATH}",
                    ssl=self.ssl_context,
                    proxy=str(self.proxy),
                    proxy_headers=self.proxy.headers(),
                ) as websocket,
            ):
                await self._connection_handler(websocket)
        except aiohttp.ClientHttpProxyError as error:
            raise self.proxy.refusal(error.status, host, port) from None
        except aiohttp.ClientProxyConnectionError as error:
            raise self.proxy.unreached(error.os_error) from None
