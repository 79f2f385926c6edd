# minispec needs Python 3.11 or later and make; everything else goes into .venv.
#
#   make lab     set up, then open the course in JupyterLab
#   make test    set up, then what has to pass: lint, tests, notebooks, three lessons and the site in a browser
#   make quick   the tests of the core, tests/test_*.py, in a minute: no browser, no download
#   make nightly the long tail: stored wrong answers, every lesson in a browser, kernels in the interpreter
#   make gpu     on a machine with an NVIDIA GPU: captures and kernels against what they have to equal (some minutes)
#   make demo    watch a draft and its target tell a story in the terminal
#   make site    set up, then build the course as web pages: site/index.html
#   make lint    ruff, both as linter and as formatter
#   make loc     lines of Python in every folder
#   make clean   remove .venv and all caches
#
# Another interpreter: make lab PYTHON=python3.12

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
PYTEST  = $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

.PHONY: lab demo site test quick nightly gpu lint loc clean

lab: $(VENV)/.installed-course
	@$(BIN)/minispec lab

demo: $(VENV)/.installed
	@$(BIN)/minispec demo

site: $(VENV)/.installed-site
	@$(BIN)/python -m minispec_course.site

# One thread per worker: two test workers with two torch threads each would fight for two cores. A third worker computes
# while others wait for a browser, a kernel or a server. Compiled files are kept, whatever the environment says: tests
# start dozens of processes, and each would compile the package again.
quick nightly: JOBS ?= 2
test: JOBS ?= 3
test quick nightly: export OMP_NUM_THREADS = 1
test quick nightly: export PYTHONDONTWRITEBYTECODE =

test: lint
	$(PYTEST) --nbval --nbval-current-env --nbval-cell-timeout=120 -m "not nightly" tests notebooks solutions

quick: $(VENV)/.installed-dev
	$(PYTEST) -p no:nbval -m "not slow and not nightly" $(wildcard tests/test_*.py)

nightly: $(VENV)/.installed-dev
	$(PYTEST) -p no:nbval -m nightly tests

# TESTS=test_passes runs those of one file, TESTS=replay those with this word in their name.
gpu: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -v -p no:nbval --deselect tests/gpu/test_kernels.py tests/gpu tests/gpu/kernel_tests.py -k "$(TESTS)"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

loc:
	@for room in minispec minispec/*/ minispec_course minispec_course/*/ minispec_tools minispec_tools/*/ tests; do \
		lines=$$(find $$room -name '*.py' -exec cat {} + | wc -l); \
		test $$lines -eq 0 || printf '%7d  %s\n' $$lines $${room%/}; \
	done

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
	find . -name .ipynb_checkpoints -prune -exec rm -rf {} +

# The stamps remember what was installed, and are older than the files below as soon as one of these changes. What an
# engine needs is part of the course's packages, and these are part of the development tools.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP) -e ".[cpu]"
	@touch $@

$(VENV)/.installed-course: pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP) -e ".[course]"
	@touch $(VENV)/.installed $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP) -e ".[dev]"
	@touch $(VENV)/.installed $(VENV)/.installed-course $(VENV)/.installed-site $@

$(VENV)/.installed-site: pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP) -e ".[course,site]"
	@touch $(VENV)/.installed $(VENV)/.installed-course $@

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python %d.%d is too old for minispec: \
	install 3.11 or later and name it, as in  make lab PYTHON=python3.12" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
