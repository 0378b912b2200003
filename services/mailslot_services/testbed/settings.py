"""The settings of an engine: what it is given, and nothing of the environment. A test is the same everywhere."""

from __future__ import annotations

from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from mailslot_core.settings import IngestSettings, WorkerSettings


class _Given(BaseSettings):
    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - pydantic's signature
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """See pydantic-settings."""
        return (init_settings,)


class DoorSettings(_Given, IngestSettings):
    """Of the doors."""


class CrewSettings(_Given, WorkerSettings):
    """Of the worker."""
