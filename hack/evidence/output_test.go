// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func TestCounts(t *testing.T) {
	for name, tt := range map[string]struct {
		output string
		want   Counts
		text   string
	}{
		"ginkgo": {
			output: "Random Seed: \x1b[1m1764\x1b[0m - will randomize all specs\n" +
				"Will run \x1b[1m128\x1b[0m of \x1b[1m158\x1b[0m specs\n" +
				"\x1b[38;5;9m\x1b[1mRan 128 of 158 Specs in 1500.123 seconds\x1b[0m\n" +
				"\x1b[38;5;9m\x1b[1mFAIL!\x1b[0m -- \x1b[38;5;10m\x1b[1m126 Passed\x1b[0m | \x1b[38;5;9m\x1b[1m2 Failed\x1b[0m | \x1b[38;5;11m\x1b[1m0 Pending\x1b[0m | 30 Skipped\n" +
				"--- FAIL: TestE2E (1500.13s)\nFAIL\n",
			want: Counts{Specs: Numbers{126, 2}, Seeds: []string{"1764"}},
			text: "128 specs (2 failed)",
		},
		"ginkgo three times": {
			output: strings.Repeat("Random Seed: 7\nSUCCESS! -- 30 Passed | 0 Failed | 0 Pending | 128 Skipped\n", 3),
			want:   Counts{Specs: Numbers{90, 0}, Seeds: []string{"7"}},
			text:   "90 specs",
		},
		"a set-up that failed": {
			output: "FAIL! - Interrupted by User -- 0 Passed | 1 Failed | 0 Pending | 0 Skipped\n",
			want:   Counts{Specs: Numbers{0, 1}},
			text:   "1 specs (1 failed)",
		},
		"go test": {
			output: "ok  \tgithub.com/kiln-net/kiln/api\t1.2s\nok  \tgithub.com/kiln-net/kiln/cni\t(cached)\n?   \tgithub.com/kiln-net/kiln/cmd\t[no test files]\n" +
				"    ok  \tnot\ta package\n--- FAIL: TestX (0.1s)\n    a_test.go:3: seed: 42 (repeat with KILN_SEED=42)\nFAIL\nFAIL\tgithub.com/kiln-net/kiln/agent\t0.4s\nFAIL\tgithub.com/kiln-net/kiln/b [build failed]\nFAIL\n",
			want: Counts{Packages: Numbers{1, 2}, Seeds: []string{"42"}},
			text: "3 packages (2 failed)",
		},
		"the demo": {
			output: "\n20 checks passed.\n", want: Counts{Specs: Numbers{20, 0}}, text: "20 specs",
		},
		"conformance": {
			output: "\n46 passed, 1 failed, 3 had nothing to do here, in 107s. Files: _output/conformance\n", want: Counts{Specs: Numbers{46, 1}}, text: "47 specs (1 failed)",
		},
		"all of them, and the last line has no end": {
			output: "SUCCESS! -- 49 Passed | 0 Failed | 0 Pending | 109 Skipped\r\nok  \tgithub.com/kiln-net/kiln/api\t1.2s\nok  \tgithub.com/kiln-net/kiln/cni\t1.2s",
			want:   Counts{Specs: Numbers{49, 0}, Packages: Numbers{1, 0}},
			text:   "49 specs, 1 packages",
		},
		"mutants": {
			output: "killed    ipam2: a: b (3s)\n62 mutants: 60 killed, 2 survived, 0 invalid\n", want: Counts{Mutants: Numbers{60, 2}}, text: "62 mutants (2 failed)",
		},
		"nothing": {output: "ok\nPASS\nFAIL\nok  github.com/kiln-net/kiln\n"},
	} {
		t.Run(name, func(t *testing.T) {
			// Output comes in pieces of any size.
			for pieces, reader := range map[string]io.Reader{"whole": strings.NewReader(tt.output), "bytes": iotest.OneByteReader(strings.NewReader(tt.output))} {
				c := &counter{}
				if _, err := io.Copy(c, reader); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.want, c.Counts); diff != "" {
					t.Errorf("%s (-want +got):\n%s", pieces, diff)
				}
				if got := c.String(); got != tt.text {
					t.Errorf("%s: %q, want %q", pieces, got, tt.text)
				}
			}
		})
	}
}

func TestARecordHasTheFirstSeeds(t *testing.T) {
	c := &counter{}
	for n := range 3 * mostSeeds {
		if _, err := io.WriteString(c, "seed: "+strings.Repeat("1", n+1)+" (repeat with KILN_SEED=1)\n"); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.Seeds) != mostSeeds || c.Seeds[0] != "1" {
		t.Errorf("%d seeds: %q", len(c.Seeds), c.Seeds)
	}
}

func TestDistribution(t *testing.T) {
	for release, want := range map[string]string{
		"NAME=\"Debian\"\nPRETTY_NAME=\"Debian GNU/Linux 13 (trixie)\"\nID=debian\n": "Debian GNU/Linux 13 (trixie)",
		"PRETTY_NAME=Alpine\n": "Alpine",
		"ID=debian\n":          "unknown",
	} {
		if got := distribution(release); got != want {
			t.Errorf("%q: %q, want %q", release, got, want)
		}
	}
}

func TestKernelVersion(t *testing.T) {
	for release, want := range map[string]string{"6.12.41+deb13-amd64": "6.12.41", "6.1.0-37-cloud-amd64": "6.1.0", "6.14-rc1": "6.14", "5.10": "5.10"} {
		if got := version(release); got != want {
			t.Errorf("%q: %q, want %q", release, got, want)
		}
	}
}

func TestThisMachineHasFigures(t *testing.T) {
	m, err := thisMachine()
	if err != nil {
		t.Fatal(err)
	}
	if m.Cores < 1 || m.Kernel == "" || m.Distribution == "" {
		t.Errorf("%+v", m)
	}
}
