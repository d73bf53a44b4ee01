"""Write the broker's settings with the zone of its node as `broker.rack`, in an init container.

Environment: NODE_NAME, NODE_LABEL (of the zone), SOURCE and TARGET (files), and what Kubernetes
sets for its API. A node without the label gives the broker no rack.
"""

import json
import os
import ssl
import sys
import urllib.request
from pathlib import Path

CREDENTIALS = Path(os.environ.get("CREDENTIALS", "/var/run/secrets/kubernetes.io/serviceaccount"))


def node_labels(name: str) -> dict[str, str]:
    """Return the labels of a node. Raises OSError if the API does not respond or refuses."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    host = f"[{host}]" if ":" in host else host
    request = urllib.request.Request(f"https://{host}:{port}/api/v1/nodes/{name}")
    request.add_header("Authorization", f"Bearer {(CREDENTIALS / 'token').read_text()}")
    context = ssl.create_default_context(cafile=str(CREDENTIALS / "ca.crt"))
    with urllib.request.urlopen(request, timeout=10, context=context) as response:
        labels: dict[str, str] = json.load(response)["metadata"].get("labels", {})
    return labels


def main() -> int:
    node, label = os.environ["NODE_NAME"], os.environ["NODE_LABEL"]
    try:
        zone = node_labels(node).get(label)
    except OSError as error:
        sys.stderr.write(
            f"cannot read node {node}: {error}. Set rack.enabled=false to do without\n"
        )
        return 1
    text = Path(os.environ["SOURCE"]).read_text()
    if zone is None:
        sys.stderr.write(f"node {node} has no label {label}: the broker gets no rack\n")
    else:
        sys.stdout.write(f"rack {zone}, from node {node}\n")
        text += f'"broker.rack" = {json.dumps(zone)}\n'
    Path(os.environ["TARGET"]).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
