import dataclasses

import pytest

from nnrp_backend.protocol.config import ClientConfig, ServerConfig
from nnrp_backend.protocol.constants import OUR_TAG

BOTH = pytest.mark.parametrize("config", [ClientConfig, ServerConfig])


@BOTH
@pytest.mark.parametrize("value", [0, -1, 0x10000])
def test_the_in_flight_limit_must_fit_its_field(config, value):
    with pytest.raises(ValueError, match=f"1 to 65535, not {value}"):
        config(max_in_flight=value)


@BOTH
@pytest.mark.parametrize("value", [1, 0xFFFF])
def test_its_bounds_are_allowed(config, value):
    assert config(max_in_flight=value).max_in_flight == value


@BOTH
def test_defaults_show_our_mark_and_the_largest_packet(config):
    assert config().tag == OUR_TAG
    assert config().max_packet_bytes == 64 * 1024 * 1024


@BOTH
def test_settings_do_not_change(config):
    with pytest.raises(dataclasses.FrozenInstanceError):
        config().tag = 0
