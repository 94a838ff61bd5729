"""Two orchestrators over Kafka, PostgreSQL and RabbitMQ, with two Celery workers; the orchestrator with stages under way
is killed. A trigger in the database counts what took effect, whoever did it."""

from project import Project, expect, podman, wait_for

JOBS = 6
STAGES = 4
PARTITIONS = 12
# The broker of this test is older than the images that the compose file names.
BROKER_VERSION = "0.9.0.1"

COUNTING = """
    CREATE TABLE effects (job_id text NOT NULL, stage text NOT NULL, attempt integer NOT NULL);
    CREATE FUNCTION count_stage() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO effects VALUES (NEW.job_id, NEW.stage, NEW.attempt); RETURN NULL; END $$;
    CREATE TRIGGER count_stage AFTER UPDATE ON orchestrator.stages FOR EACH ROW
        WHEN (NEW.state = 'succeeded' AND OLD.state <> 'succeeded') EXECUTE FUNCTION count_stage();
"""
# Stages that workers have begun, of the partitions of one owner.
UNDER_WAY = """
    SELECT s.job_id, s.stage, p.partition, p.epoch FROM orchestrator.stages s JOIN orchestrator.partitions p USING (partition)
    WHERE s.state = 'running' AND p.owner = '{}'
"""


def run(folder):
    file = folder / "config" / "orchestrator.yaml"
    brokers = "  brokers: kafka:9092\n"
    text = file.read_text()
    expect(text.count(brokers) == 1, f"there is no line {brokers!r} in {file}")
    file.write_text(text.replace(brokers, f"{brokers}  broker_version: '{BROKER_VERSION}'\n"))
    # With `--scale worker=2`, podman-compose forgets how many orchestrators the file asks for. And podman 4.3 starts
    # nothing that depends on a container that has ended, if that one depends on another: `topics` is restarted instead,
    # until there is a broker.
    changes = folder / "changes.yaml"
    changes.write_text(
        "services:\n"
        "  worker: {deploy: {mode: replicated, replicas: 2}}\n"
        "  topics: {depends_on: !reset {}}\n"
    )
    with Project(folder, "orchestrator", files=[changes]) as project:
        sql = project.sql
        for service in ("postgres", "kafka", "rabbitmq", "orchestrator"):
            wait_for(f"{service} is healthy", lambda service=service: project.is_healthy(service))
        expect(len(project.containers("orchestrator")) == 2, "there are no two orchestrators")

        def owners():
            return dict(sql("SELECT owner, count(*) FROM orchestrator.partitions GROUP BY 1"))

        def shared():
            found = owners()
            return found if len(found) == 2 and sum(map(int, found.values())) == PARTITIONS else None

        before = wait_for("two orchestrators have all partitions", shared)
        sql(COUNTING)
        produce = (
            f'for n in $(seq {JOBS}); do python produce.py --brokers kafka:9092 --topic jobs.commands --api-version 0.9'
            ' --organization acme --match "match-$n" a.mp4; done'
        )
        sent = podman("exec", project.containers("worker")[0]["Id"], "sh", "-euc", produce).splitlines()
        expect(len(sent) == JOBS, f"not all commands were sent: {sent}")

        def killed():
            """Stops the orchestrator with most stages under way, and kills it if they still are."""
            owner = max(before, key=lambda owner: len(sql(UNDER_WAY.format(owner))))
            [container] = [c for c in project.containers("orchestrator") if c["Id"][:12] in owner]
            podman("kill", "--signal=STOP", container["Id"])
            held = sql(UNDER_WAY.format(owner))
            if held:
                project.kill(container)
                return owner, held
            podman("kill", "--signal=CONT", container["Id"])
            return None

        victim, held = wait_for("an orchestrator with stages under way was killed", killed)
        wait_for("the other one has all partitions", lambda: victim not in owners() and len(owners()) == 1)
        wait_for(
            f"{JOBS} jobs have succeeded",
            lambda: sql("SELECT state, count(*) FROM orchestrator.jobs GROUP BY 1") == [["succeeded", str(JOBS)]],
        )
        epochs = dict(sql("SELECT partition, epoch FROM orchestrator.partitions"))
        for job, _, partition, epoch in held:
            expect(int(epochs[partition]) > int(epoch), f"the epoch of {job}'s partition did not grow: {epochs}")
        effects = sql("SELECT job_id, stage, count(*) FROM effects GROUP BY 1, 2")
        expect(len(effects) == JOBS * STAGES, f"{JOBS} jobs of {STAGES} stages, and effects of: {effects}")
        twice = [effect for effect in effects if effect[2] != "1"]
        expect(not twice, f"took effect more than once: {twice}")
        titles = sql("SELECT result->>'title' FROM orchestrator.stages WHERE stage = 'render' AND job_id = 'acme-match-1'")
        expect(titles == [["acme", " match-1: 22 players", " 1 ball"]], f"the result of a job is {titles}")
        listed = podman("exec", project.container("orchestrator"), "solehold", "job", "ls")
        expect(listed.count("succeeded") == JOBS, f"`solehold job ls` shows:\n{listed}")
        print(f"  {len(held)} stages of {victim} went on; {JOBS} jobs ended once each, {len(effects)} stages took effect")
