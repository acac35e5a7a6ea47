// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// NFT runs nft(8) in the test's namespaces with commands in nft's language, and returns its output. The test ends if nft fails. The tests use the program,
// because knftables neither lists timeouts nor creates tables that contradict its own declarations.
func NFT(t testing.TB, commands string) string {
	t.Helper()
	out, err := TryNFT(commands)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TryNFT is NFT without a test.
func TryNFT(commands string) (string, error) {
	command := exec.Command("nft", "-f", "-")
	command.Stdin = strings.NewReader(commands)
	out, err := command.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("nft: %s: %w: %s", commands, err, out)
	}
	return string(out), nil
}
