// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sbom writes a software bill of materials in the format SPDX 2.3, and the licences of Go modules. The same input gives the same bytes.
package sbom

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"io"
	"net/url"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// Document is the input of a bill of materials.
type Document struct {
	Name     string // of the image or archive that it describes
	Version  string
	Purpose  string // CONTAINER or ARCHIVE
	Created  time.Time
	Packages []Package
	Programs []Program
}

// Package is a Debian package.
type Package struct {
	Name, Version, Architecture string
	SHA256                      string // of the .deb file
	Release                     string // codename of the Debian release
	Source, Homepage            string // from the package's control data; Source is the source package with its version in parentheses if that differs
}

// Program is a Go program.
type Program struct {
	Path   string // in the image or archive
	SHA256 string
	Info   *buildinfo.BuildInfo
}

// ReadProgram reads the build information of a Go program.
func ReadProgram(file, path string) (Program, error) {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return Program{}, fmt.Errorf("read the build information of %s: %w", file, err)
	}
	f, err := os.Open(file)
	if err != nil {
		return Program{}, fmt.Errorf("read a program: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return Program{}, fmt.Errorf("read %s: %w", file, err)
	}
	return Program{Path: path, SHA256: hex.EncodeToString(h.Sum(nil)), Info: info}, nil
}

// Module is a Go module that a program contains.
type Module struct{ Path, Version string }

// ownModule is the module of this repository.
const ownModule = "github.com/kiln-net/kiln"

// Modules returns the modules of the programs without the module of this repository, sorted. The standard library is the module "stdlib".
func Modules(programs []Program) []Module {
	seen := map[Module]bool{}
	for _, p := range programs {
		for _, m := range modulesOf(p) {
			seen[m] = true
		}
	}
	out := make([]Module, 0, len(seen))
	for m := range seen {
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b Module) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Version, b.Version))
	})
	return out
}

// Standard is the module path that stands for Go's standard library, as in Go's vulnerability database.
const Standard = "stdlib"

func modulesOf(p Program) []Module {
	out := []Module{{Standard, strings.TrimPrefix(p.Info.GoVersion, "go")}}
	dependencies := p.Info.Deps
	if main := p.Info.Main; main.Path != ownModule {
		dependencies = append([]*debug.Module{&main}, dependencies...)
	}
	for _, m := range dependencies {
		if m.Replace != nil {
			m = m.Replace
		}
		out = append(out, Module{m.Path, m.Version})
	}
	return out
}

// Write writes the document as JSON.
func (d Document) Write(to io.Writer) error {
	b := &builder{}
	root := b.add(v2_3.Package{
		PackageName: d.Name, PackageVersion: d.Version, PackageLicenseDeclared: "NOASSERTION", PrimaryPackagePurpose: d.Purpose,
	}, "contents")
	b.relate("DOCUMENT", "DESCRIBES", root)
	for _, p := range d.Packages {
		b.relate(root, "CONTAINS", b.add(p.describe(), "deb-"+p.Name))
	}
	modules := map[Module]common.ElementID{}
	for _, m := range Modules(d.Programs) {
		modules[m] = b.add(m.describe(), "go-"+m.Path+"-"+m.Version)
	}
	for _, p := range d.Programs {
		program := b.add(p.describe(d.Version), "program-"+p.Path)
		b.relate(root, "CONTAINS", program)
		for _, m := range modulesOf(p) {
			b.relate(program, "STATIC_LINK", modules[m])
		}
	}
	document := &v2_3.Document{
		SPDXVersion: v2_3.Version, DataLicense: v2_3.DataLicense, SPDXIdentifier: "DOCUMENT", DocumentName: d.Name + "-" + d.Version,
		DocumentNamespace: "https://" + ownModule + "/spdx/" + url.PathEscape(d.Name) + "/" + b.digest(),
		CreationInfo: &v2_3.CreationInfo{
			Creators: []common.Creator{{CreatorType: "Organization", Creator: "The Kiln Authors"}, {CreatorType: "Tool", Creator: "kiln-hack-image"}},
			Created:  d.Created.UTC().Format(time.RFC3339),
		},
		Packages: b.packages, Relationships: b.relationships,
	}
	if err := json.Write(document, to, json.Indent(" ")); err != nil {
		return fmt.Errorf("write the bill of materials: %w", err)
	}
	return nil
}

// builder collects the elements of a document.
type builder struct {
	packages      []*v2_3.Package
	relationships []*v2_3.Relationship
}

// notID matches what an SPDX identifier cannot contain.
var notID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

func (b *builder) add(p v2_3.Package, id string) common.ElementID {
	p.PackageSPDXIdentifier = common.ElementID(notID.ReplaceAllString(id, "-"))
	p.PackageDownloadLocation, p.PackageLicenseConcluded, p.PackageCopyrightText = "NOASSERTION", "NOASSERTION", "NOASSERTION"
	p.IsFilesAnalyzedTagPresent = true
	b.packages = append(b.packages, &p)
	return p.PackageSPDXIdentifier
}

func (b *builder) relate(from common.ElementID, relationship string, to common.ElementID) {
	b.relationships = append(b.relationships, &v2_3.Relationship{
		RefA: common.MakeDocElementID("", string(from)), Relationship: relationship, RefB: common.MakeDocElementID("", string(to)),
	})
}

// digest identifies the content, so that each document has a namespace of its own.
func (b *builder) digest() string {
	h := sha256.New()
	for _, p := range b.packages {
		fmt.Fprintf(h, "%s %s %s %v\n", p.PackageSPDXIdentifier, p.PackageName, p.PackageVersion, p.PackageChecksums)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func (p Package) describe() v2_3.Package {
	source := p.Source
	if source == "" {
		source = p.Name
	}
	locator := fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s&distro=%s", url.PathEscape(p.Name), escape(p.Version), p.Architecture, p.Release)
	return v2_3.Package{
		PackageName: p.Name, PackageVersion: p.Version, PackageHomePage: p.Homepage, PackageSourceInfo: "source package: " + source,
		PackageSupplier: &common.Supplier{SupplierType: "Organization", Supplier: "Debian"}, PackageChecksums: checksum(p.SHA256),
		PackageLicenseDeclared: "NOASSERTION", PackageLicenseComments: "/usr/share/doc/" + p.Name + "/copyright in the image has the licences",
		PackageExternalReferences: purl(locator),
	}
}

func (m Module) describe() v2_3.Package {
	return v2_3.Package{
		PackageName: m.Path, PackageVersion: m.Version, PackageLicenseDeclared: "NOASSERTION",
		PackageExternalReferences: purl("pkg:golang/" + m.Path + "@" + escape(m.Version)),
	}
}

func (p Program) describe(version string) v2_3.Package {
	out := v2_3.Package{
		PackageName: p.Info.Path, PackageVersion: p.Info.Main.Version, PackageFileName: p.Path, PackageChecksums: checksum(p.SHA256),
		PackageLicenseDeclared: "NOASSERTION", PrimaryPackagePurpose: "APPLICATION",
	}
	if p.Info.Main.Path == ownModule {
		out.PackageVersion, out.PackageLicenseDeclared = version, "Apache-2.0"
		out.PackageExternalReferences = purl("pkg:golang/" + ownModule + "@" + escape(version))
	}
	return out
}

// escape encodes a version for a package URL.
func escape(version string) string { return strings.ReplaceAll(url.QueryEscape(version), "%7E", "~") }

func purl(locator string) []*v2_3.PackageExternalReference {
	return []*v2_3.PackageExternalReference{{Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: locator}}
}

func checksum(sha256 string) []common.Checksum {
	return []common.Checksum{{Algorithm: common.SHA256, Value: sha256}}
}
