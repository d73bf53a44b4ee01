"""Effects of the broker settings for authorization. The client of a world is anonymous."""

from __future__ import annotations

from millstream.wire.messages.metadata import MetadataRequest
from settings.effect import broker_effect
from settings.world import World

_STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


async def _asked(world: World) -> object:
    """Ask for a topic that does not exist; return the error code."""
    wanted = [MetadataRequest.Topic(name="t")]
    request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
    return (await world.call(request)).topics[0].error_code


@broker_effect("authorizer.class.name", "", _STANDARD)
async def _an_authorizer_denies(world: World) -> object:
    await world.broker()
    return await _asked(world)


@broker_effect("authorizer.mode", "enforce", "learn")
async def _learning_denies_nothing(world: World) -> object:
    await world.broker(authorizer_class_name="millstream")
    return await _asked(world)


@broker_effect("super.users", "User:admin", "User:admin;User:ANONYMOUS")
async def _super_users_may_do_everything(world: World) -> object:
    await world.broker(authorizer_class_name="millstream")
    return await _asked(world)


@broker_effect("allow.everyone.if.no.acl.found", "false", "true")
async def _resources_without_acls(world: World) -> object:
    await world.broker(authorizer_class_name="millstream")
    return await _asked(world)
