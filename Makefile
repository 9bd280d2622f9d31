# Every target does its own set-up. `make run` and `make test` are all that a newcomer needs.
# ARGS goes to pytest: make test ARGS="tests/store -k recovery", make unit ARGS=-x

.PHONY: help run demo test check lint types unit client format fuzz h2spec kubernetes chaos differ handovers simulate pythons spark-oldest bench soak docs protos site dist image compose-check chart recording terminalpictures setup setup-run clean

ARGS =

# The container image: its name, and the program that builds it (docker or podman).
IMAGE = firearrow
CONTAINER = docker

# Tests that need no broker of this machine, so that they run on macOS as well.
CLIENT = tests/message tests/wire tests/filter $(addprefix tests/client/,admin consumer test_imports.py test_message.py \
	test_idempotence.py producer/test_batchsender.py producer/test_ending.py pull/test_rangereader.py \
	push/test_anyorder.py routing/test_cache.py routing/test_queues.py routing/test_routes.py session/test_portal.py)

# Tests start Python a thousand times: where this is set, each would compile every module again.
export PYTHONDONTWRITEBYTECODE =

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' Makefile | expand -t 22

run: setup-run ## name server and broker in one process, store under ./data, ports 9876 and 10911
	@exec .venv/bin/firearrow serve

demo: setup ## messages that come later, fail and are decided, and what Spark says of it: a minute
	@exec .venv/bin/python -m tools.demo

test: lint ## everything: lint, types, architecture, unit and interop tests
	@tools/test.sh $(ARGS)

check: lint types ## lint, format, types, architecture, generated docs

lint: setup
	@.venv/bin/ruff check --quiet
	@.venv/bin/ruff format --check --quiet
	@.venv/bin/lint-imports --no-logo --cache-dir .import_linter_cache
	@.venv/bin/python -m tools.write_docs --check

# What it knows of a file, mypy knows by its content: a new checkout need not find out all of it again.
types: setup
	@MYPY_CACHE_DIR="$${FIREARROW_CACHE:-$$HOME/.cache/firearrow}/mypy" .venv/bin/mypy --no-error-summary

unit: setup ## the tests that need nothing but Python
	@.venv/bin/python -m pytest -n 2 --dist loadscope -m "not interop and not spark" $(ARGS)

client: setup ## the tests of the client and of formats that need no broker: those for macOS
	@.venv/bin/python -m pytest -n 2 --dist loadscope $(CLIENT) $(ARGS)

format: setup ## format the code and apply the fixes that lint knows
	@.venv/bin/ruff check --fix
	@.venv/bin/ruff format

fuzz: setup ## the property tests of codec, server, filters and delivery, for a long time
	@HYPOTHESIS_PROFILE=fuzz FIREARROW_GRPC_SEQUENCES=1000000 .venv/bin/python -m pytest tests/fuzz tests/filter \
		tests/broker/test_world.py tests/wire/test_hpack.py tests/wire/test_http2.py --timeout 0 $(ARGS)
	@FIREARROW_SQL_PAIRS=1000000 .venv/bin/python -m pytest tests/interop/test_filters.py $(ARGS)

h2spec: setup ## every test that h2spec has for a server of HTTP/2 (needs Go)
	@.venv/bin/python -m pytest tests/interop/test_h2spec.py $(ARGS)

# Kubernetes' API server is built at the first run: ten minutes of two cores, and 3 GB of memory.
kubernetes: setup ## Spark's jobs on pods, against Kubernetes' own API server (needs Go, Java, Linux)
	@.venv/bin/python -m pytest tests/spark/test_kubernetes.py $(ARGS)

chaos: setup ## kills, pauses, losses of power, damage and cuts of the network, of brokers alone and in groups
	@seed=$${FIREARROW_CUT_SEED:-$$(date +%s)}; echo "FIREARROW_CUT_SEED=$$seed"; \
		FIREARROW_CUT_SEED=$$seed FIREARROW_CUT_ROUNDS=50 FIREARROW_KILL_ROUNDS=200 FIREARROW_POWER_LOSS_SEEDS=2000 FIREARROW_ARCHIVE_KILL_ROUNDS=400 \
		FIREARROW_SPARK_KILL_ROUNDS=20 FIREARROW_REPLICAS_KILL_ROUNDS=50 FIREARROW_REPLICA_KILL_ROUNDS=3 \
		FIREARROW_DAMAGE_SEEDS=200 FIREARROW_REPLICA_POWER_SEEDS=60 .venv/bin/python -m pytest -n 2 \
		tests/crash tests/replication tests/interop/test_replication.py tests/store/test_power_loss.py \
		tests/spark/jobs/archive/test_archiving_killed.py tests/spark/jobs/archive/test_archiving_spark.py \
		tests/spark/test_cluster.py

differ: setup ## the same scripts against RocketMQ's broker and this one, a hundred seeds
	@FIREARROW_DIFFER_SEEDS=100 .venv/bin/python -m pytest tests/interop/test_differ.py $(ARGS)

handovers: setup ## every way in which a store goes from one broker to the other
	@FIREARROW_ALL_HANDOVERS=1 .venv/bin/python -m pytest tests/interop/test_takeover.py \
		tests/interop/test_transactions.py tests/interop/test_legs.py tests/interop/test_traps.py \
		tests/interop/test_pop_takeover.py \
		$(ARGS)

simulate: setup ## ten million events of producers, consumers and crashes in virtual time, ten of Raft, replication, and plans of 100 TB
	@.venv/bin/python -m tests.broker.simulation $(ARGS)
	@.venv/bin/python -m tests.raft.simulation
	@.venv/bin/python -m tests.replication.simulation
	@.venv/bin/python -m tests.spark.simulation

pythons: ## the unit tests on every Python from 3.11 to 3.14 that is here
	@tools/pythons.sh $(ARGS)

spark-oldest: setup ## the Spark tests on the oldest PySpark that is supported
	@tools/spark_oldest.sh $(ARGS)

bench: setup ## this broker against RocketMQ's own, in the same run (needs Java, Maven, cargo)
	@exec .venv/bin/python -m benchmarks $(ARGS)

soak: setup ## 2,000 connections and 10,000 waiting pulls for ten minutes: memory, wake-ups, idle CPU
	@exec .venv/bin/python -m benchmarks.soak $(ARGS)

docs: setup ## write the tables in docs/ that come from the code
	@.venv/bin/python -m tools.write_docs

protos: setup ## compile the .proto files of the gRPC proxy
	@.venv/bin/python -m tools.write_protos

recording: setup ## the terminal that the README shows, in docs/recording.svg
	@.venv/bin/python -m tools.recording

terminalpictures: setup ## the terminals of the page on monitoring, in docs/pictures
	@.venv/bin/python -m tools.terminalpictures

site: docs ## the documentation as a site, in build/site/html
	@.venv/bin/python -m tools.site

dist: setup ## sdist, wheel, bill of materials and sums in dist/; TAG=v1.2.3 checks the version first
	@.venv/bin/python -m tools.release $(if $(TAG),--tag $(TAG))

# Time and revision are those of the commit. Images of podman's own format would have no health check.
image: ## the container image, by $(CONTAINER)
	@BUILDAH_FORMAT=docker $(CONTAINER) build -f Containerfile -t $(IMAGE) \
		--build-arg VERSION="$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' src/firearrow/__init__.py)" \
		--build-arg REVISION="$$(git rev-parse HEAD)" --build-arg CREATED="$$(git log -1 --format=%cI)" .

chart: ## the Helm chart as a package, in dist/ (needs helm)
	@helm package packaging/helm/firearrow --destination dist

# If a step fails, the containers are left to look at: `docker compose logs`, then `docker compose down --volumes`.
compose-check: image ## start compose.yaml with the image, send a message, check the cluster, stop it (needs docker)
	@docker compose up --detach --wait --wait-timeout 180
	@docker compose exec -T console firearrow topic create greetings -n namesrv:9876
	@docker compose exec -T console firearrow message send greetings hello -n proxy:8080
	@docker compose exec -T console firearrow check -n namesrv:9876
	@docker compose down --volumes

setup:
	@tools/setup.sh dev

setup-run:
	@tools/setup.sh run

clean: ## remove everything that set-up and tests have made
	rm -rf .venv .venv-* .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build dist
