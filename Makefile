# Every target installs what it needs in .venv; `make help` lists them.
PYTHON ?= python3
# Only the command line sets these: many shells export variables of these names.
HOST = 127.0.0.1
PORT = 9092
DATA = ./data
NAME =
VENV := .venv
BIN := $(VENV)/bin
SHELL := /bin/bash

# The targets start hundreds of processes; none should recompile every module.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

.PHONY: help
help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "muster needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1). Name another: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# One stamp per set of extras, renewed when pyproject.toml changes.
$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.$(if $(filter-out base,$*),[$*])'
	@touch $@

# HTTP is a port, or HOST:PORT.
HTTP_AT = $(if $(findstring :,$(HTTP)),$(HTTP),127.0.0.1:$(HTTP))
.PHONY: run
run: $(VENV)/.installed-$(if $(HTTP),http,base)  ## start a broker on 127.0.0.1:9092 with its store in ./data (HOST=, PORT=, DATA= change that; HTTP=8080 serves the page on 127.0.0.1:8080, HTTP=HOST:PORT elsewhere)
	$(BIN)/muster serve --host $(HOST) --port $(PORT) --data $(DATA) $(if $(HTTP),--http $(HTTP_AT))

# More processes than cores: half of a test's time goes by in waiting, and in make test two thirds.
SIDE_BY_SIDE := --numprocesses 4 --dist worksteal

.PHONY: test
test: $(VENV)/.installed-test tests/__pycache__  ## the tests, on asyncio, and where the loop matters in its debug mode or on uvloop
	$(BIN)/python -m pytest --numprocesses 6 --dist worksteal

.PHONY: test-slow
test-slow: $(VENV)/.installed-test  ## the other tests that need nothing but Python: commands, examples and the pytest plugin as processes, failover, packaging, the simulator, the fuzzers
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(addprefix tests/,cli examples failover fuzz packaging plugin simulator)

# In a fresh clone, tests are compiled once instead of once by every process.
tests/__pycache__:
	@$(BIN)/python -m pytest --collect-only --quiet > /dev/null

.PHONY: test-python
test-python:  ## make test and make test-slow in a Debian root with another Python: make test-python VERSION=3.14 (or 3.13; needs Linux, root and debootstrap)
	tests/pythons/in-debian-root $(or $(VERSION),$(error which? make test-python VERSION=3.14)) test test-slow

# auditwheel finds the oldest C library that will do, and says so in the wheel's name.
.PHONY: wheel
wheel: $(VENV)/.installed-wheel  ## the compiled wheel, in dist/ (one to two minutes; needs a C compiler and Python's headers)
	rm -rf build/wheel dist/*-cp*.whl
	MUSTER_COMPILED=1 $(BIN)/python -m build --wheel --outdir build/wheel
	$(if $(filter Linux,$(shell uname)),PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/python -m auditwheel repair --wheel-dir dist,mkdir -p dist && cp -t dist) build/wheel/*.whl

.PHONY: test-compiled
test-compiled: wheel $(VENV)/.installed-test  ## the tests of what is compiled, and the fuzzers, against the compiled wheel in an environment of its own
	$(BIN)/python -m tests.compiled dist/*-cp*.whl

.PHONY: check
check: $(VENV)/.installed-check  ## ruff, mypy --strict (as on Linux, macOS and Windows), calls in the tests, and the import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@printf '%s\n' $(foreach platform,linux darwin win32,'--platform $(platform) --cache-dir .mypy_cache/$(platform)') \
	  '--config-file tests/mypy.ini --cache-dir .mypy_cache/tests tests' | xargs -L 1 -P 2 $(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: interop
interop: $(VENV)/.installed-interop $(VENV)/.installed-test  ## stock Kafka clients against muster, with KAFKA=1 all of it against Apache Kafka too (make interop-tools checks what it needs)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder $(if $(KAFKA),--kafka-stories) tests/interop

# Install the Debian package of a missing command. $(1): command; $(2): package, if its name differs
package = $(or $(2),$(1))
debian = command -v $(1) > /dev/null || { echo "$(1) is missing: installing the package $(package) with apt-get"; \
  command -v apt-get > /dev/null || { echo "there is no apt-get here: install $(package) by other means" >&2; exit 1; }; \
  as_root=$$(test "$$(id -u)" = 0 || echo sudo); \
  $$as_root apt-get install -y $(package) || { $$as_root apt-get update && $$as_root apt-get install -y $(package); }; }

# What make interop needs. Only kcat, PostgreSQL and what pip has are installed; the others are your choice.
.PHONY: interop-tools
interop-tools: postgres-tools $(VENV)/.installed-interop $(VENV)/.installed-test  ## check for the tools of make interop (Java, Maven, Node.js, Go, kcat, PostgreSQL); installs the last two with apt-get, and clients with pip
	@for tool in java javac mvn node npm go; do command -v $$tool > /dev/null || { \
	  echo "make interop needs $$tool on the PATH: a JDK of Java 17 or later, Maven, Node.js 18 or later with npm, and Go" >&2; exit 1; }; done
	@$(call debian,kcat)

# KILLS are of workers; as many of the broker come on top (BROKER_KILLS).
.PHONY: exactly-once
exactly-once: $(VENV)/.installed-interop $(VENV)/.installed-test  ## transactions of stock clients and frameworks with workers and (under clients) brokers killed on the way, some minutes a client: make exactly-once RECORDS=100000 KILLS=10 SEED=7 (BROKER_KILLS=, CLIENT=java-client or flink, TARGET=kafka; needs what make interop needs)
	$(BIN)/python -m tests.interop.transactions --records $(or $(RECORDS),100000) --kills $(or $(KILLS),10) --broker-kills $(or $(BROKER_KILLS),$(KILLS),10) $(if $(CLIENT),--client $(CLIENT)) $(if $(TARGET),--target $(TARGET)) $(if $(SEED),--seed $(SEED))

.PHONY: interop-table
interop-table: $(VENV)/.installed-interop $(VENV)/.installed-test  ## run all clients' stories and write the table in docs/compatibility.md
	$(BIN)/python -m tests.interop.story --table

.PHONY: causes
causes: $(VENV)/.installed-interop $(VENV)/.installed-test  ## real clients made to rebalance in every way, and muster's diagnosis (needs what make interop needs)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) tests/causes

.PHONY: causes-table
causes-table: $(VENV)/.installed-interop $(VENV)/.installed-test  ## the same, and write the table in docs/why.md
	$(BIN)/python -m tests.causes --table

.PHONY: kafka
kafka: $(VENV)/.installed-test  ## replay every scenario against Apache Kafka (needs Java 17 or later and Maven)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder tests/kafka

# The random lives of make kafka, more of them and with a fresh seed.
LIVES = --lives $(or $(TIMES),20) --lives-seed $(or $(SEED),$(shell $(BIN)/python -c 'import random; print(random.randrange(2**32))'))

.PHONY: kafka-transactions
kafka-transactions: $(VENV)/.installed-test  ## random lives of transactional ids, of what leaders take and of offsets in transactions, twenty times those of make kafka: make kafka-transactions SEED=7 (TIMES=; needs what make kafka needs)
	$(BIN)/python -m pytest --numprocesses 2 tests/kafka/test_transactions.py tests/kafka/test_txn_offsets.py tests/kafka/test_verification.py -k random $(LIVES)

.PHONY: kafka-data
kafka-data: $(VENV)/.installed-test  ## random requests to the logs of partitions, twenty times those of make kafka: make kafka-data SEED=7 (TIMES=; needs what make kafka needs)
	$(BIN)/python -m pytest tests/kafka/test_random_data.py $(LIVES)

.PHONY: kafka-administration
kafka-administration: $(VENV)/.installed-test  ## random requests of administrators' tools, twenty times those of make kafka: make kafka-administration SEED=7 (TIMES=; needs what make kafka needs)
	$(BIN)/python -m pytest tests/kafka/test_administration.py $(LIVES)

# Fresh sequences; those of make kafka never change.
.PHONY: differential
differential: $(VENV)/.installed-test $(if $(COMPILED),wheel)  ## compare random request sequences on Apache Kafka and muster: make differential SEED=7 (KIND=classic or consumer, SEQUENCES=, TIMED=, MINUTES= of each kind; WRITE=1 writes docs/PROOF.md; COMPILED=1 compares the compiled build with the pure one instead; needs what make kafka needs)
	$(BIN)/python -m tests.kafka.differential $(if $(KIND),--kind $(KIND)) $(if $(SEED),--seed $(SEED)) $(if $(SEQUENCES),--sequences $(SEQUENCES)) $(if $(TIMED),--timed $(TIMED)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(COMPILED),--compiled) $(if $(WRITE),--write)

# Mounting a small disk takes root; a user namespace provides it.
AS_ROOT := $(if $(filter-out 0,$(shell id -u)),unshare --map-root-user --mount)

.PHONY: faults
faults: $(VENV)/.installed-interop $(VENV)/.installed-test  ## kill -9 under load, traces of syncs, bad disks, and faults in a cluster over PostgreSQL: make faults SEED=7 (needs Linux, root, and what make faults-tools installs)
	$(AS_ROOT) $(BIN)/python -m pytest --numprocesses 2 --dist worksteal tests/faults $(if $(SEED),--seed $(SEED)) $(if $(KILLS),--kills $(KILLS)) $(if $(ROUNDS),--rounds $(ROUNDS))

.PHONY: faults-tools
faults-tools: postgres-tools  ## check for the tools of make faults; installs strace, iproute2, iptables, faketime and PostgreSQL with apt-get
	@$(call debian,strace)
	@$(call debian,ip,iproute2)
	@$(call debian,iptables)
	@$(call debian,faketime)

.PHONY: faults-long
faults-long: $(VENV)/.installed-interop $(VENV)/.installed-test  ## the cluster part of make faults, 20 rounds of each fault, about an hour: make faults-long SEED=7 (ROUNDS=)
	$(BIN)/python -m tests.faults.cluster --rounds $(or $(ROUNDS),20) $(if $(SEED),--seed $(SEED))

.PHONY: crash-long
crash-long: $(VENV)/.installed-test  ## 500 times kill -9 under load, with transactions in flight, half an hour: make crash-long SEED=7 (needs Linux and strace)
	$(BIN)/python -m tests.faults --kills $(or $(KILLS),500) $(if $(SEED),--seed $(SEED))

# The suites with several backends, over PostgreSQL, and those about PostgreSQL alone.
.PHONY: postgres
postgres: $(VENV)/.installed-test  ## the tests of clusters over PostgreSQL, each with a server of its own (needs the server's programs)
	$(BIN)/python -m pytest --postgres $(SIDE_BY_SIDE) --dist loadfile tests/postgres \
	  tests/storage/test_records.py tests/storage/test_journal.py tests/storage/test_leases.py tests/storage/test_cluster_rows.py tests/topics tests/failover

.PHONY: postgres-tools
postgres-tools:  ## check for PostgreSQL's server; installs Debian's postgresql with apt-get
	@ls /usr/lib/postgresql/*/bin/postgres > /dev/null 2>&1 || { $(call debian,postgres,postgresql) }

.PHONY: web
web: $(VENV)/.installed-web $(VENV)/.installed-test  ## the page of muster serve --http in Chromium (needs what make web-tools installs)
	$(BIN)/python -m pytest --numprocesses 2 tests/web

.PHONY: web-tools
web-tools:  ## check for the browser of make web; installs Debian's chromium with apt-get
	@command -v chromium-browser > /dev/null || command -v google-chrome > /dev/null || { $(call debian,chromium) }

# COMPOSE_LAB names a command that provides a Docker engine where there is none, and then runs another command:
# COMPOSE_LAB REQUIREMENT -- COMMAND, with the requirement that the Dockerfile installs.
IMAGE_NEEDS = '$(CURDIR)[postgres,http,security]'
.PHONY: compose-test
compose-test: $(VENV)/.installed-interop $(VENV)/.installed-test  ## docker compose up; containers killed, paused and cut off under load (needs Docker with Compose)
	$(if $(COMPOSE_LAB),$(COMPOSE_LAB) $(IMAGE_NEEDS) --) $(BIN)/python -m pytest tests/compose

# Two processes, each with its own session: Spark spends most of the time planning, which takes one core.
.PHONY: test-spark
test-spark: $(VENV)/.installed-spark $(VENV)/.installed-interop $(VENV)/.installed-test  ## the pipeline on Spark, next to Spark's own connector (needs a JDK 17 or later, Maven, and what make postgres-tools installs)
	SEED=$(SEED) $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder -m 'not long' tests/pipeline

.PHONY: spark-tools
spark-tools: $(VENV)/.installed-spark $(VENV)/.installed-interop $(VENV)/.installed-test  ## download what make test-spark needs: half a gigabyte with pip, and the jars of Spark's own connector
	$(BIN)/python -c "from tests.pipeline.connector.jars import connector_jars; connector_jars()"

# KILLS for each layout of the tables.
.PHONY: spark-long
spark-long: $(VENV)/.installed-spark $(VENV)/.installed-interop $(VENV)/.installed-test  ## muster-pipeline ingest, and a query that writes exactly once, killed ten times at random points, executors and a worker that die, a package shipped as an archive; twenty minutes: make spark-long SEED=7 (KILLS=; needs Java 17 or later)
	KILLS=$(or $(KILLS),10) SEED=$(SEED) $(BIN)/python -m pytest -s tests/pipeline/test_kills.py tests/pipeline/test_exactly_once.py
	$(BIN)/python -m pytest -m long tests/pipeline

.PHONY: demo-pipeline
demo-pipeline: $(VENV)/.installed-spark  ## brokers, groups with a bad minute, the pipeline and its report, in ./demo or TO= (three minutes; needs Java 17 or later)
	$(BIN)/python examples/spark/demo.py $(if $(TO),--to $(TO))

# Each run prints its seed. To repeat what it found: .venv/bin/python -m tests.fuzz --seed ... --input ...
.PHONY: fuzz
fuzz: $(VENV)/.installed-test  ## five million broken inputs and ten thousand hostile connections: make fuzz SEED=7 (a few minutes; needs Linux)
	$(BIN)/python -m tests.fuzz $(if $(SEED),--seed $(SEED)) $(if $(INPUTS),--inputs $(INPUTS))
	$(BIN)/python -m tests.fuzz --reach $(if $(SEED),--seed $(SEED))

.PHONY: fuzz-strangers
fuzz-strangers: $(VENV)/.installed-test  ## ten million damaged SASL tokens and TLS handshakes: make fuzz-strangers SEED=7 (INPUTS=; some minutes)
	$(BIN)/python -m tests.fuzz.strangers $(if $(SEED),--seed $(SEED)) $(if $(INPUTS),--inputs $(INPUTS))

# MINUTES are CPU time of the broker and its attackers.
.PHONY: fuzz-live
fuzz-live: $(VENV)/.installed-test  ## attack a live broker with every API and version, broken frames, ten thousand idle connections and floods: make fuzz-live MINUTES=30 SEED=7 (needs Linux)
	$(BIN)/python -m tests.fuzz --live-minutes $(or $(MINUTES),30) $(if $(SEED),--seed $(SEED))

.PHONY: soak
soak: $(VENV)/.installed-test  ## hours of groups, topics, records and clients that come and go, and what the server keeps of them: make soak HOURS=2 SEED=7 (SAMPLES=file.jsonl; needs Linux; SIGTERM ends it early)
	$(BIN)/python -m tests.soak $(if $(HOURS),--hours $(HOURS)) $(if $(SEED),--seed $(SEED)) $(if $(SAMPLES),--samples $(SAMPLES))

.PHONY: bench
bench: $(VENV)/.installed-interop $(VENV)/.installed-test  ## speed as ratios to peers in the same run (NAME=commits for one; WRITE=1 updates FIGURES.md; needs PostgreSQL: make postgres-tools)
	$(BIN)/python -m tests.bench $(NAME) $(if $(WRITE),--write)

.PHONY: bench-compiled
bench-compiled: wheel $(VENV)/.installed-test  ## one benchmark of make bench, on the compiled wheel: make bench-compiled NAME=client_consume
	$(BIN)/python -m tests.compiled dist/*-cp*.whl --run tests.bench $(or $(NAME),$(error which? make bench-compiled NAME=client_consume))

.PHONY: bench-peers
bench-peers: wheel $(VENV)/.installed-bench $(VENV)/.installed-test  ## muster next to Apache Kafka, librdkafka's mock cluster and kfake, docs/PEERS.md (QUICK=1 for a quick check; COLD=1 for servers that were just started, docs/first-ten-seconds.md; ONLY=start,memory; SERVERS=muster,kafka; AGAIN=1; WRITE=1; about two hours; needs Java 17, Maven, Go, PostgreSQL)
	$(BIN)/python -m tests.bench.peers $(if $(QUICK),--quick) $(if $(COLD),--cold) $(if $(ONLY),--only $(ONLY)) $(if $(SERVERS),--servers $(SERVERS)) $(if $(AGAIN),--again) $(if $(WRITE),--write)

.PHONY: bench-spark
bench-spark: $(VENV)/.installed-spark $(VENV)/.installed-test  ## the pipeline's speed on Spark, and the source next to Spark's own connector (NAME=source for one; WRITE=1 updates tests/pipeline/bench/FIGURES-NAME.md; needs a JDK 17 or later and Maven)
	$(BIN)/python -m tests.pipeline.bench $(NAME) $(if $(WRITE),--write)

.PHONY: bench-journal
bench-journal: $(VENV)/.installed-spark $(VENV)/.installed-test  ## `muster-pipeline rebalances` on journals of 1, 3 and 10 million events (JOURNAL=file.parquet keeps the real one that they repeat; JOURNAL_MILLIONS=1,3 for other sizes; WRITE=1 as above)
	$(BIN)/python -m tests.pipeline.bench journal $(if $(WRITE),--write)

.PHONY: sim
sim: $(VENV)/.installed-test  ## one simulated run: make sim SEED=7 STEPS=2000
	$(BIN)/python -m tests.simulator $(if $(SEED),--seed $(SEED)) $(if $(STEPS),--steps $(STEPS))

# Every run has its own seed, printed with what it broke; make sim SEED=... repeats it.
.PHONY: simulator
simulator: $(VENV)/.installed-test  ## the simulator with fresh seeds for a few minutes (MINUTES=3; SEED= of the first)
	$(BIN)/python -m tests.simulator --for-seconds $$(awk 'BEGIN { print 60 * $(or $(MINUTES),3) }') --processes $$(nproc) --quiet $(if $(SEED),--seed $(SEED))

.PHONY: sim-night
sim-night: $(VENV)/.installed-test  ## the simulator for hours; also every planted bug found with fresh seeds, and every situation of the coverage list seen (HOURS=8)
	$(BIN)/python -m tests.simulator --bugs-within 1000
	$(BIN)/python -m tests.simulator --for-seconds $$(awk 'BEGIN { print 3600 * $(or $(HOURS),8) }') --processes $$(nproc) --quiet --covered $(if $(SEED),--seed $(SEED))

.PHONY: mutation
mutation: $(VENV)/.installed-mutation $(VENV)/.installed-test  ## mutation tests of coordinator/group, or CORE=transactions (half an hour; not in CI): make mutation ONLY=consumer/heartbeats,migration SHOW=1
	$(BIN)/python -m tests.mutation $(if $(CORE),--core $(CORE)) $(if $(ONLY),--only $(ONLY)) $(if $(SHOW),--show)

.PHONY: clean
clean:  ## remove what the targets created (not ./data)
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis mutants
