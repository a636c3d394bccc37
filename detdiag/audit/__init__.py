"""Audit what engineers have (requests, launch lines, model files) against the rule base."""

from __future__ import annotations

from detdiag.audit.deployment import AuditResult, audit_documents, audit_files, audit_request

__all__ = ["AuditResult", "audit_documents", "audit_files", "audit_request"]
