"""Runs a file of unittest's tests and writes a report as pytest does, for suites that pytest cannot run.

python unittest_program.py FILE [-k PATTERN] --junitxml=REPORT
"""

import argparse
import importlib.util
import sys
import unittest
import xml.etree.ElementTree as ET
from pathlib import Path


class Report(unittest.TextTestResult):
    """Keeps what became of each test, its subtests with it."""

    def __init__(self, *arguments, **keys):
        super().__init__(*arguments, **keys)
        self.cases = ET.Element("testsuite")
        self.case = None

    def startTest(self, test):
        super().startTest(test)
        name = type(test).__name__
        self.case = ET.SubElement(self.cases, "testcase", classname=name, name=test._testMethodName)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.told("failure", error)

    def addError(self, test, error):
        super().addError(test, error)
        self.told("error", error)

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.told("failure", error)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        ET.SubElement(self.case, "skipped", message=reason)

    def told(self, word, error):
        if self.case is not None and self.case.find(word) is None:
            ET.SubElement(self.case, word, message=f"{error[0].__name__}: {error[1]}")


class Loader(unittest.TestLoader):
    """Loads all tests but one."""

    left_out = ""

    def getTestCaseNames(self, case):
        return [name for name in super().getTestCaseNames(case) if name != self.left_out]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("-k", default="")
    parser.add_argument("--except", dest="left_out", default="")
    parser.add_argument("--junitxml", type=Path)
    given, _ = parser.parse_known_args()
    sys.path.insert(0, str(given.file.parent))
    specification = importlib.util.spec_from_file_location(given.file.stem, given.file)
    module = importlib.util.module_from_spec(specification)
    sys.modules[given.file.stem] = module
    specification.loader.exec_module(module)
    loader = Loader()
    loader.left_out = given.left_out
    if given.k:
        loader.testNamePatterns = [given.k]
    result = unittest.TextTestRunner(resultclass=Report).run(loader.loadTestsFromModule(module))
    root = ET.Element("testsuites")
    root.append(result.cases)
    ET.ElementTree(root).write(given.junitxml)
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
