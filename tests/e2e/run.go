package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/features"
	"k8s.io/klog/v2"
	conformancetestdata "k8s.io/kubernetes/test/conformance/testdata"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	e2etestingmanifests "k8s.io/kubernetes/test/e2e/testing-manifests"
	testfixtures "k8s.io/kubernetes/test/fixtures"
)

const suiteName = "Kubernetes e2e suite"

// What the names of specs have that must not run beside others, and of those whose
// informers may not list, not even to check what they have.
const (
	serialMark  = "[Serial]"
	unlistsMark = "API Streaming (aka. WatchList)"
)

// runSpecs runs the selected specs one after another and writes a line of JSON for each.
// How the specs went is in the results, not in the exit code.
func runSpecs(args []string) error {
	results := flag.String("results", "", "`file` for the results, a line of JSON per spec")
	shard := flag.String("shard", "1/1", "`I/N`: of most specs every Nth; or serial, or streaming")
	file := flag.String("specs", "", "`file` with the names of the specs to run")
	match := flag.String("match", "", "run the specs that match this `regexp` instead")
	limit := flag.Duration("limit", 8*time.Minute, "what has not run after this time is not run")
	if err := parseFrameworkFlags(args); err != nil {
		return err
	}
	names, err := selected(*file, *match, *shard)
	if err != nil {
		return err
	}
	out, err := newResults(*results)
	if err != nil {
		return err
	}
	ginkgo.ReportAfterEach(func(report ginkgo.SpecReport) { out.write(report) })

	suite, reporter := ginkgo.GinkgoConfiguration()
	suite.RandomSeed = 1 // both runs in the same order
	suite.Timeout = *limit
	suite.FocusStrings = []string{exactly(names)}
	suite.SkipStrings = nil
	reporter.Succinct = true
	reporter.NoColor = true
	gomega.RegisterFailHandler(framework.Fail)
	klog.EnableContextualLogging(true)
	if len(names) > 0 {
		ginkgo.RunSpecs(verdict{}, suiteName, suite, reporter)
	}
	return out.close()
}

// verdict is asked to fail when a spec failed, which is no failure of the run.
type verdict struct{}

func (verdict) Fail() {}

// parseFrameworkFlags takes the flags of Kubernetes' e2e.test as well, and sets the
// framework up for a cluster that has no nodes to wait for.
func parseFrameworkFlags(args []string) error {
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	if err := flag.CommandLine.Parse(args); err != nil {
		return err
	}
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	testfiles.AddFileSource(e2etestingmanifests.GetE2ETestingManifestsFS())
	testfiles.AddFileSource(testfixtures.GetTestFixturesFS())
	testfiles.AddFileSource(conformancetestdata.GetConformanceTestdataFS())
	// As client-go does by itself. In this binary its gates are those of the components it is linked with.
	gates := map[string]bool{string(features.WatchListClient): true}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(gates); err != nil {
		return fmt.Errorf("set feature gate: %w", err)
	}
	context := &framework.TestContext
	context.Provider = "skeleton"
	context.IPFamily = "ipv4"
	context.DumpLogsOnFailure = false
	context.AllowedNotReadyNodes = -1
	context.CloudConfig.NumNodes = 1
	framework.AfterReadingAllFlags(context)
	return nil
}

// listSpecs prints what specs.txt can name.
func listSpecs(args []string) error {
	if err := parseFrameworkFlags(args); err != nil {
		return err
	}
	for _, name := range allSpecs() {
		fmt.Println(name)
	}
	return nil
}

func allSpecs() []string {
	var names []string
	for _, report := range ginkgo.PreviewSpecs(suiteName).SpecReports {
		if report.LeafNodeType == types.NodeTypeIt {
			names = append(names, report.FullText())
		}
	}
	return names
}

// selected is what one process runs.
func selected(file, match, shard string) ([]string, error) {
	names, err := specs(file, match)
	if err != nil {
		return nil, err
	}
	marked := map[string]string{"serial": serialMark, "streaming": unlistsMark}
	if mark := marked[shard]; mark != "" {
		return keep(names, func(_ int, name string) bool { return strings.Contains(name, mark) }), nil
	}
	var this, of int
	if _, err := fmt.Sscanf(shard, "%d/%d", &this, &of); err != nil || this < 1 || this > of {
		return nil, fmt.Errorf("--shard=%s: I/N, serial or streaming", shard)
	}
	if of == 1 {
		return names, nil
	}
	names = keep(names, func(_ int, name string) bool {
		return !strings.Contains(name, serialMark) && !strings.Contains(name, unlistsMark)
	})
	return keep(names, func(at int, _ string) bool { return at%of == this-1 }), nil
}

// specs are those that match, or those of the file, which must all be there.
func specs(file, match string) ([]string, error) {
	linked := allSpecs()
	if match != "" {
		pattern, err := regexp.Compile(match)
		if err != nil {
			return nil, fmt.Errorf("--match: %w", err)
		}
		return keep(linked, func(_ int, name string) bool { return pattern.MatchString(name) }), nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read --specs: %w", err)
	}
	known := map[string]bool{}
	for _, name := range linked {
		known[name] = true
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		name := strings.TrimSpace(line)
		if name == "" || strings.HasPrefix(name, "#") {
			continue
		}
		if !known[name] {
			return nil, fmt.Errorf("%s: Kubernetes has no spec %q", file, name)
		}
		names = append(names, name)
	}
	return names, nil
}

func keep(names []string, wanted func(at int, name string) bool) []string {
	var kept []string
	for at, name := range names {
		if wanted(at, name) {
			kept = append(kept, name)
		}
	}
	return kept
}

// exactly is the regular expression that ginkgo compares with the suite's and the
// spec's name.
func exactly(names []string) string {
	quoted := make([]string, len(names))
	for at, name := range names {
		quoted[at] = regexp.QuoteMeta(name)
	}
	return "^" + regexp.QuoteMeta(suiteName) + " (?:" + strings.Join(quoted, "|") + ")$"
}

func init() {
	// What is said by specs that pass is noise.
	if os.Getenv("KUBE_E2E_VERBOSE") == "" {
		klog.SetOutput(ginkgo.GinkgoWriter)
	}
}
