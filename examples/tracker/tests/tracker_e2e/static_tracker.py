"""A tracker of static partitions: its file names all that it publishes, with the version of each scene.

It reads the file once. To give it another list is to restart it, as with any static partition.
"""

import json
import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from tracker import Mqtt, objects  # noqa: E402


class Options:
    broker_ca = broker_password_file = None

    def __init__(self, broker, name):
        self.broker, self.id = broker, name


def main():
    broker, name, path = sys.argv[1:]
    scenes = json.loads(pathlib.Path(path).read_text())["scenes"]
    mqtt = Mqtt(Options(broker, name))
    ending = []
    signal.signal(signal.SIGTERM, lambda *_: ending.append(True))
    sequence = 0
    print(f"{name} publishes {len(scenes)} scenes", flush=True)
    while not ending:
        sequence += 1
        for scene, version in scenes.items():
            message = {"scene_id": scene, "sequence": sequence, "tracker": f"{name}/{os.getpid()}"}
            message.update({"data": {"objects": objects()}, "_version": version})
            mqtt.publish(f"scenescape/data/scene/{scene}/person", json.dumps(message).encode())
        time.sleep(0.05)
    mqtt.close()


main()
