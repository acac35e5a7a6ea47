// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// product lists the files from which the image, the manifests and the plugin are made, with the versions of OVN and Open vSwitch. Tests in these directories belong to
// the product; the directories test and hack do not.
var product = []string{"agent", "api", "cmd", "cni", "config", "controllers", "hack/image", "hack/packaging", "internal", "supervisor", "go.mod", "go.sum"}

// tests lists the other files that decide which tests run.
var tests = []string{"test", "hack", "Makefile"}

// errChanged is returned if the working tree has changes that are not committed.
var errChanged = errors.New("files of the product or of the tests have changes that are not committed")

// committed returns an error if files of the product or of the tests differ from HEAD.
func committed(ctx context.Context, root string) error {
	changes, err := git(ctx, root, slices.Concat([]string{"status", "--porcelain", "--"}, product, tests)...)
	if err == nil && changes != "" {
		err = fmt.Errorf("%w:\n%s", errChanged, strings.TrimRight(changes, "\n"))
	}
	return err
}

// productOf returns a hash of the product's files in HEAD, and the commit.
func productOf(ctx context.Context, root string) (tree, commit string, err error) {
	entries, err := git(ctx, root, append([]string{"ls-tree", "HEAD", "--"}, product...)...)
	if err != nil {
		return "", "", err
	}
	if entries == "" {
		return "", "", errors.New("the commit has no file of the product")
	}
	commit, err = git(ctx, root, "rev-parse", "HEAD")
	sum := sha256.Sum256([]byte(entries))
	return hex.EncodeToString(sum[:20]), strings.TrimSpace(commit), err
}

func git(ctx context.Context, root string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "git", append([]string{"-C", root}, args...)...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
		}
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return string(out), nil
}
