"""Writes the positions of a scene under the token of a lease: fenced.py DATABASE_URL SCENE TOKEN POSITIONS"""

import sys

import psycopg

STALE = "SH412"  # another holder has written under a newer token: stop, and do not retry


def write(connection: psycopg.Connection, scene: str, token: int, positions: str) -> None:
    with connection.transaction():
        # SET takes no parameters; set_config does. True: only for this transaction.
        connection.execute("SELECT set_config('solehold.token', %s, true)", [str(token)])
        connection.execute("UPDATE app.tracks SET positions = %s WHERE scene_id = %s", [positions, scene])


def main() -> int:
    url, scene, token, positions = sys.argv[1:]
    with psycopg.connect(url) as connection:
        try:
            write(connection, scene, int(token), positions)
        except psycopg.Error as error:
            if error.sqlstate != STALE:
                raise
            print(f"stale: {error.diag.message_primary}")
            return 3
    print("written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
